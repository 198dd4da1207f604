"""From torch to the IR: block annotations, capture of modules, import of FX graphs and of optimisers."""
