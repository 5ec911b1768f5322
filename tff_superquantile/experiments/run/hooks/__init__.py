"""The features of a run besides its method: a file each, whose hook has a row in `order`."""
