"""The compute plane: engines that run models, and what is kept between turns."""
