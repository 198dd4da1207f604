"""Long runs: threads, forks, interrupts, memory. Tests run a small size of each, ``make reliability`` the full one."""
