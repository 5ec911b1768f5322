"""Exports a finished run's model for programs that know nothing of this project.

`exported_model` joins preprocessing, network and probabilities, `formats` writes them, and
`model_card` says beside them what the model is and whom it serves.
"""
