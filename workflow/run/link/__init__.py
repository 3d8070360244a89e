"""Connect the supervisor and its node programs: messages, the authenticated connection, the event loop that both wait in."""
