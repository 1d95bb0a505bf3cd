"""The terminal: prose and results (`output`), a thread that writes without waiting for readers (`writer`), and how far
long work is (`progress`)."""
