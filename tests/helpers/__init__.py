"""What tests share: runs, tables and clients to test on, and independent answers."""
