"""The translation service: `dragoman serve`. FastAPI in front, a worker process for each model behind it."""
