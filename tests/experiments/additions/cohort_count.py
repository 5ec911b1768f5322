"""A noisy number of a round as somebody adds it: its accounting. The first of three files."""

from privacy import parts


class CohortCount(parts.Number):
  """The number of clients that train, by their shares: a client adds at most 1."""

  flag = "cohort_noise_multiplier"
  label = "clients that train"
  symbol = "z_c"
  share_flag = "cohort_rho_ratio"
  seen = "numbers of clients"
  released = "a count of the clients that train"
  noted = "the count of the clients that train"
  column = "noisy_cohort_size"
  usual_share = 0.05
  share_help = "the budget of the count of the clients over that of all before it; by default none"
  noise_help = "z_c, noise of the count of the clients over its sensitivity"
