"""The terminal: prose and results (`output`), a thread that writes without waiting for readers (`writer`), the lines
about one piece of long work (`phase`), and when they are shown (`progress`)."""
