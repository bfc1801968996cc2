"""The model repository of `shoal serve --demo`, and a photo to try it with. Data only."""

__version__ = "0.2.0"
