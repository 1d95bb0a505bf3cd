"""One launch: prepare, start, follow, stop, finish, judge."""
