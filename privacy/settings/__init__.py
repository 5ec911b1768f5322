"""Settings that are flags: values that check themselves. Standard library alone."""
