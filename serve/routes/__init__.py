"""What is answered on which path. Each module is one API; none knows another."""

__all__: list[str] = []
