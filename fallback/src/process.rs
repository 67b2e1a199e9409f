//! Values of which each process has one. A forked child must not use its parent's threads, nor
//! wait for a lock that one of them held, so it makes its own.

use std::sync::OnceLock;

/// One value for each process, made on first use.
#[derive(Debug)]
pub struct PerProcess<T> {
    first: OnceLock<Box<Node<T>>>,
}

#[derive(Debug)]
struct Node<T> {
    process: u32,
    value: T,
    /// The value of a child that was forked after this one was made.
    child: OnceLock<Box<Node<T>>>,
}

impl<T> PerProcess<T> {
    /// No value yet.
    pub const fn new() -> Self {
        Self { first: OnceLock::new() }
    }

    /// This process's value, if it was made.
    pub fn get(&self) -> Option<&T> {
        let process = std::process::id();
        let mut node = self.first.get()?;
        while node.process != process {
            node = node.child.get()?;
        }
        Some(&node.value)
    }

    /// This process's value, made by `make` if it is the first to ask.
    pub fn get_or_init(&self, make: impl Fn() -> T) -> &T {
        let process = std::process::id();
        let new = || Box::new(Node { process, value: make(), child: OnceLock::new() });
        let mut node = self.first.get_or_init(new);
        while node.process != process {
            node = node.child.get_or_init(new);
        }
        &node.value
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_made_once() {
        let value = PerProcess::new();
        assert_eq!(value.get(), None);
        assert_eq!(value.get_or_init(|| 1), &1);
        assert_eq!(value.get_or_init(|| 2), &1);
        assert_eq!(value.get(), Some(&1));
    }
}
