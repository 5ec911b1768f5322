"""The programs of TFF's tutorials, as people extend them, each a list of cells.

`build` of each module makes its computations anew. A cell is a function without arguments, and what
it returns is compared. Data are drawn, of the tutorials' shapes and formats.
"""
