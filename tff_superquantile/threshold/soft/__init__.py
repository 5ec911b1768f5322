"""Builds soft alternatives to a threshold, which give each client a share relative to the cohort.

A client's share is its factor over the largest factor that there is, so that nothing overflows,
whatever the losses. The average divides by the sum of the weights pi_i, share times alpha_i. One
client changes the shares of all, so that the server sees the losses; with `histogram` a private
histogram takes their place.
"""
