"""How supervisor and node programs talk: messages, the authenticated connection, the event loop that both wait in."""
