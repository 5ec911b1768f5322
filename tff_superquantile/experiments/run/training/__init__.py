"""How a run trains, besides its method: optimizers, learning rates, cohorts, initial weights."""
