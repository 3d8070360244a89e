"""A program with a clock of its own: each step takes a millisecond."""

import time

import slipway_events

run = slipway_events.start()
for _ in run.steps(range(4), samples=lambda _: 4):
    time.sleep(0.001)
