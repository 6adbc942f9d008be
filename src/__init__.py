"""Attention and Transformers: the package that the chapters of the book import."""

__version__ = "0.1.0"
