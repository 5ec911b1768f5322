"""What a run releases, what that costs, and the noise a budget asks for. No TensorFlow here."""
