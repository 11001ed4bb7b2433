"""The service: an HTTP API over saved models, a store of live events and a page to try it on."""
