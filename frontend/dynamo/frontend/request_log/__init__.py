"""What became of requests that have ended: when each stage began, and which workers had them. `dynamo explain` asks."""
