//! A Python store's hold on an engine store, across forks.
//!
//! A forked child shares its parent's files and locks but none of its threads, and must not
//! act for it. So in a child a handle opens the path again, as a reader, when it is first used.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};
use ringloader_engine::codec::Codec;
use ringloader_engine::runtime::{self, Backend};
use ringloader_engine::storage::{Mode, Options};
use ringloader_engine::{DenseStore, Error, RaggedStore, Result};

use crate::errors::detached;

/// What both kinds of store can do.
pub(crate) trait EngineStore: Send + Sync + Sized {
    fn open(path: &Path, options: &Options) -> Result<Self>;
    fn path(&self) -> &Path;
    fn codec(&self) -> Codec;
    fn is_ours(&self) -> bool;
    fn is_closed(&self) -> bool;
    fn close(&self) -> Result<()>;
}

macro_rules! engine_store {
    ($store:ident) => {
        impl EngineStore for $store {
            fn open(path: &Path, options: &Options) -> Result<Self> {
                $store::open(path, options)
            }

            fn path(&self) -> &Path {
                self.path()
            }

            fn codec(&self) -> Codec {
                self.codec()
            }

            fn is_ours(&self) -> bool {
                self.is_ours()
            }

            fn is_closed(&self) -> bool {
                self.is_closed()
            }

            fn close(&self) -> Result<()> {
                self.close()
            }
        }
    };
}

engine_store!(DenseStore);
engine_store!(RaggedStore);

/// One process's store, and that of a child that was forked from it.
struct Link<S> {
    store: S,
    child: OnceLock<Box<Link<S>>>,
}

/// A store as Python holds it.
pub(crate) struct Handle<S> {
    /// As it was given.
    pub(crate) path: PathBuf,
    /// Where it is whatever the working directory becomes.
    pub(crate) absolute: PathBuf,
    mode: Mode,
    pub(crate) io: Option<Backend>,
    pub(crate) codec: &'static str,
    link: Link<S>,
    /// Set when it is closed in a child that has not opened the path again.
    closed: AtomicBool,
}

impl<S: EngineStore> Handle<S> {
    /// Holds what `open` gives for `path`.
    pub(crate) fn new(
        py: Python<'_>,
        path: PathBuf,
        options: &Options,
        open: impl FnOnce(&Path, &Options) -> Result<S> + Send,
    ) -> PyResult<Self> {
        detached(py, || {
            runtime::check_environment()?;
            Self::hold(path, options, open)
        })
    }

    fn hold(
        path: PathBuf,
        options: &Options,
        open: impl FnOnce(&Path, &Options) -> Result<S>,
    ) -> Result<Self> {
        let store = open(&path, options)?;
        let codec = store.codec().name();
        let absolute = store.path().to_owned();
        let link = Link { store, child: OnceLock::new() };
        let (mode, io) = (options.mode, options.io);
        Ok(Self { path, absolute, mode, io, codec, link, closed: AtomicBool::new(false) })
    }

    /// The store of this process.
    pub(crate) fn store(&self) -> Result<&S> {
        let mut link = &self.link;
        while !link.store.is_ours() {
            if self.closed.load(Ordering::Acquire) {
                return Err(Error::Closed { path: self.path.clone() });
            }
            link = match link.child.get() {
                Some(child) => child,
                None => self.reopen(link)?,
            };
        }
        Ok(&link.store)
    }

    fn reopen<'a>(&self, link: &'a Link<S>) -> Result<&'a Link<S>> {
        let options = Options { mode: Mode::Read, io: self.io, ..Options::default() };
        let store = S::open(&self.absolute, &options)?;
        // Another thread may have been faster; its store serves as well.
        Ok(link.child.get_or_init(|| Box::new(Link { store, child: OnceLock::new() })))
    }

    fn opened_here(&self) -> Option<&S> {
        let mut link = Some(&self.link);
        while let Some(current) = link {
            if current.store.is_ours() {
                return Some(&current.store);
            }
            link = current.child.get().map(Box::as_ref);
        }
        None
    }

    /// How the store is open in this process: a forked child only reads.
    pub(crate) fn mode(&self) -> Mode {
        if self.link.store.is_ours() { self.mode } else { Mode::Read }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
            || self.opened_here().is_some_and(EngineStore::is_closed)
    }

    pub(crate) fn close(&self) -> Result<()> {
        self.closed.store(true, Ordering::Release);
        self.opened_here().map_or(Ok(()), EngineStore::close)
    }

    /// Fails with the message of a closed store.
    pub(crate) fn check_open(&self) -> PyResult<()> {
        if self.is_closed() {
            let error = Error::Closed { path: self.path.clone() };
            return Err(PyValueError::new_err(error.to_string()));
        }
        Ok(())
    }

    /// The name of the way to read, as `open` takes it.
    pub(crate) fn io_name(&self) -> &'static str {
        self.io.map_or("auto", Backend::name)
    }
}

/// The bytes of an object that has a buffer of them.
pub(crate) fn bytes_of(object: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    PyMemoryView::from(object)?.call_method0("tobytes")?.extract()
}

/// A path argument: text, bytes, or what has `__fspath__`.
pub(crate) fn path_of(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    object.py().import("os")?.call_method1("fsdecode", (object,))?.extract()
}

/// A `store.zr` that the engine accepts and numpy does not.
pub(crate) fn bad_identity(py: Python<'_>, path: &Path, cause: PyErr) -> PyErr {
    if cause.is_instance_of::<pyo3::exceptions::PyImportError>(py) {
        return cause;
    }
    let reason = format!("numpy does not know its dtype: {}", cause.value(py));
    let error = crate::errors::to_python(py, Error::InvalidStore { path: path.to_owned(), reason });
    error.set_cause(py, Some(cause));
    error
}

/// Gives a Python store class the methods that do not depend on the shape of its records.
macro_rules! common_methods {
    ($class:ident, $engine:ident) => {
        #[pymethods]
        impl $class {
            /// The store's directory, as it was given.
            #[getter]
            fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                py.import("pathlib")?.getattr("Path")?.call1((&self.handle.path,))
            }

            /// The element type.
            #[getter]
            fn dtype(&self, py: Python<'_>) -> Py<PyArrayDescr> {
                self.dtype.clone_ref(py)
            }

            /// ``"raw"``, ``"zstd"`` or ``"zstd_dict"``.
            #[getter]
            fn codec(&self) -> &'static str {
                self.handle.codec
            }

            /// ``"r"`` or ``"r+"``, as the store was opened.
            #[getter]
            fn mode(&self) -> &'static str {
                self.handle.mode().name()
            }

            /// Whether the store was closed.
            #[getter]
            fn closed(&self) -> bool {
                self.handle.is_closed()
            }

            /// Whether the store has a dictionary.
            fn has_dict(&self) -> PyResult<bool> {
                self.handle.check_open()?;
                Ok(self.handle.codec == Codec::ZstdDict.name())
            }

            fn __len__(&self, py: Python<'_>) -> PyResult<usize> {
                self.handle.check_open()?;
                Ok(self.handle.store().to_python(py)?.len() as usize)
            }

            /// Delete records, keeping the indices ``0..len(store)``.
            ///
            /// For each index, from the highest to the lowest, the last record takes the place of the deleted one, so other
            /// records may change their index. An index named twice is deleted once. The bytes stay on disk until `compact`.
            /// Waits for gathers that are under way.
            ///
            /// Parameters
            /// ----------
            /// idx : int, slice, or sequence or array of int or of bool
            ///     As for ``store[idx]``.
            ///
            /// Raises
            /// ------
            /// ZrecordError
            ///     With code -3 for an index out of range, before anything is changed; -2 if the file system refuses.
            fn delete(&self, py: Python<'_>, idx: &Bound<'_, PyAny>) -> PyResult<()> {
                let indices = self.select(py, idx)?.into_indices();
                let store = self.handle.store().to_python(py)?;
                detached(py, || store.delete(&indices))
            }

            /// Give the bytes of deleted records back, in place. Indices stay as they are.
            ///
            /// Waits for gathers that are under way. At every instant the files are a store that can be opened. Takes up to 130 bytes
            /// of memory for each record.
            fn compact(&self, py: Python<'_>) -> PyResult<()> {
                let store = self.handle.store().to_python(py)?;
                detached(py, || store.compact())
            }

            /// Records and bytes, from a pass over the record table.
            ///
            /// Returns
            /// -------
            /// dict
            ///     ``records``; ``live_bytes``, which the records occupy; ``chunk_bytes``, to which the chunk files have grown;
            ///     ``reclaimable``, the difference, an upper bound of what `compact` frees.
            fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
                let store = self.handle.store().to_python(py)?;
                let stats = detached(py, || store.stats())?;
                let dict = PyDict::new(py);
                dict.set_item("records", stats.records)?;
                dict.set_item("live_bytes", stats.live_bytes)?;
                dict.set_item("chunk_bytes", stats.chunk_bytes)?;
                dict.set_item("reclaimable", stats.reclaimable())?;
                Ok(dict)
            }

            /// Make all completed appends and deletes outlive a power loss.
            fn sync(&self, py: Python<'_>) -> PyResult<()> {
                let store = self.handle.store().to_python(py)?;
                detached(py, || store.sync())
            }

            /// Wait for calls that are under way, sync what was written, and release the files and the lock.
            ///
            /// Closing again does nothing. Arrays that were gathered stay valid.
            fn close(&self, py: Python<'_>) -> PyResult<()> {
                detached(py, || self.handle.close())
            }

            fn __enter__(slf: PyRef<'_, Self>) -> PyResult<PyRef<'_, Self>> {
                slf.handle.check_open()?;
                Ok(slf)
            }

            #[pyo3(signature = (*_exception))]
            fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) -> PyResult<()> {
                self.close(py)
            }

            fn __reduce__<'py>(
                slf: &Bound<'py, Self>,
            ) -> PyResult<(Bound<'py, PyAny>, (PathBuf, &'static str, &'static str))> {
                let handle = &slf.get().handle;
                handle.check_open()?;
                let open = slf.get_type().getattr("open")?;
                Ok((open, (handle.absolute.clone(), Mode::Read.name(), handle.io_name())))
            }

            /// A number that changes when records may have moved.
            fn _reorders(&self, py: Python<'_>) -> PyResult<u64> {
                self.handle.check_open()?;
                Ok(self.handle.store().to_python(py)?.reorders())
            }
        }

        impl $class {
            fn select(&self, py: Python<'_>, index: &Bound<'_, PyAny>) -> PyResult<Selection> {
                self.handle.check_open()?;
                let length = self.handle.store().to_python(py)?.len();
                select(index, length, &self.handle.path)
            }

            fn describe(&self, py: Python<'_>, shape: &str) -> PyResult<String> {
                let (name, path) = (stringify!($class), self.handle.path.display().to_string());
                if self.handle.is_closed() {
                    return Ok(format!("{name}({path:?}, closed)"));
                }
                let (dtype, codec) = (self.dtype.bind(py).repr()?, self.handle.codec);
                let (records, mode) = (self.__len__(py)?, self.handle.mode().name());
                Ok(format!(
                    "{name}({path:?}, {dtype}, {shape}codec={codec:?}, records={records}, mode={mode:?})"
                ))
            }
        }
    };
}

pub(crate) use common_methods;
