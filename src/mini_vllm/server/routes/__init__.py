"""One module per endpoint; each makes a router from a `Service`."""
