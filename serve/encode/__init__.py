"""Events → the bytes of each API. The encoders are pure and independent of each other."""

__all__: list[str] = []
