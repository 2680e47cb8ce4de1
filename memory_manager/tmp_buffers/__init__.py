"""The Tmp Buffer Pool (paper, section 4): short-lived tensors between roles. Pure: no sockets, no clock."""
