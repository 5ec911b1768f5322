"""What the numbers of finished runs say: changes, intervals, decisions and their words."""
