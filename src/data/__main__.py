"""``python -m src.data``: the figures of the book's data page."""

from src.data.tatoeba import main

if __name__ == "__main__":
    main()
