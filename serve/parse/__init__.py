"""JSON of each API → requests, or `BadRequest` naming the field. Pure; the parsers are independent of each other."""

__all__: list[str] = []
