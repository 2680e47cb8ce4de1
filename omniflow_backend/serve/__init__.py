"""Starting, watching and stopping a deployment on one machine."""
