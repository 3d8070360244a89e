"""Run sessions: a notebook, a shell, a server with ports or a script, in an allocation with a dataset staged; see
docs/how-to/sessions.md."""
