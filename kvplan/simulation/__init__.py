"""What happens over time: clients, front door and the engine clock in one event loop."""
