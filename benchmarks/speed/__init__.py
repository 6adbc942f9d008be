"""How fast the Transformer of `src/` is, beside what one would use instead.

One module measures one row of the book's page "How fast is it"; each is a command,
``python -m benchmarks.speed.NAME``, and ``make benchmarks`` runs them all. No test times anything:
tests run every command at toy size and check what it measures.
"""
