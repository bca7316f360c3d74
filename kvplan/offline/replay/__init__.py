"""What a plan does to a load: traces, and their replay through the planner's cache manager."""
