"""The commands on runs; flags and printing live only here."""

from tff_superquantile import lazy

lazy.check_neighbours("tasks")
