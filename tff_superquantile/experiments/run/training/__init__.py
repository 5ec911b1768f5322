"""How a run trains, besides its method: optimizers, learning rates, cohorts, start and end."""
