"""From texts to ids in memory."""
