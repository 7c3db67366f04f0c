//! What a person would try with a few nodes.
