//! What dense and ragged stores have in common, written once for both.

/// Gives a store type the methods that do not depend on the shape of its records.
macro_rules! store_methods {
    ($store:ident) => {
        impl $store {
            /// The store's directory, from the root of the file system.
            pub fn path(&self) -> &std::path::Path {
                self.storage.path()
            }

            /// The element type, as it is persisted.
            pub fn dtype(&self) -> &crate::identity::Dtype {
                &self.dtype
            }

            /// The store's codec.
            pub fn codec(&self) -> crate::codec::Codec {
                self.storage.codec()
            }

            /// The dictionary's bytes, if the codec has one.
            pub fn dictionary(&self) -> Option<&[u8]> {
                self.storage.dictionary().map(|dictionary| dictionary.bytes())
            }

            /// How the store was opened.
            pub fn mode(&self) -> crate::storage::Mode {
                self.storage.mode()
            }

            /// Records in the store now. An append adds to it when it is complete.
            pub fn len(&self) -> u64 {
                self.storage.frontier().length
            }

            /// Whether the store has no records.
            pub fn is_empty(&self) -> bool {
                self.len() == 0
            }

            /// Whether the store was closed.
            pub fn is_closed(&self) -> bool {
                self.storage.is_closed()
            }

            /// Whether this process opened the store. A forked child of that process may not
            /// use the handle: its locks and threads are the parent's. It can open the path.
            pub fn is_ours(&self) -> bool {
                self.storage.is_ours()
            }

            /// A number that changes whenever records may have changed their index.
            pub fn reorders(&self) -> u64 {
                self.storage.reorders()
            }

            /// Deletes records: for each, from the highest index to the lowest, the last record
            /// of the store takes its place. An index named twice is deleted once. Waits for
            /// gathers that are under way.
            ///
            /// # Errors
            /// [`Error::IndexOutOfRange`](crate::Error::IndexOutOfRange), before anything is
            /// changed, [`Error::ReadOnly`](crate::Error::ReadOnly), and file errors.
            pub fn delete(&self, indices: &[u64]) -> crate::Result<()> {
                self.storage.delete(indices)
            }

            /// Moves the records together and gives back the bytes of deleted ones. Indices stay
            /// as they are. Takes up to 130 bytes of memory for each record, and waits for gathers that
            /// are under way. At every instant the files are a store that can be opened.
            pub fn compact(&self) -> crate::Result<()> {
                self.storage.compact()
            }

            /// Records and bytes. Reads the whole record table.
            pub fn stats(&self) -> crate::Result<crate::storage::Stats> {
                self.storage.stats()
            }

            /// Makes all completed appends and deletes durable: record bytes, then the table,
            /// then the header.
            pub fn sync(&self) -> crate::Result<()> {
                self.storage.sync()
            }

            /// Waits for what is under way, syncs a writer's changes and releases the files and
            /// the lock. Closing again does nothing; dropping a store closes it.
            ///
            /// # Errors
            /// What the sync said. The store is closed all the same.
            pub fn close(&self) -> crate::Result<()> {
                self.storage.close()
            }
        }
    };
}

pub(crate) use store_methods;
