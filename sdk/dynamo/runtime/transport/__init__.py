"""The bus that messages travel on: its port, NATS and memory."""
