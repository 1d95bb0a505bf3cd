"""The terminal: prose and results (`output`), a thread that writes without waiting for readers (`writer`), the lines
about one piece of long work (`phase`), when they are shown (`progress`), a picture on all of it (`screen`)."""
