"""Training within a number of hours: pilot runs, a scaling law, and a forecast that is registered before training."""
