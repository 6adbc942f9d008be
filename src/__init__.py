"""Attention and Transformers: the package that the chapters of the book import."""
