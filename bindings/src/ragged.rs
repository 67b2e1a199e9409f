//! `RaggedStore`: batches are lists of arrays over one buffer.

use std::path::PathBuf;

use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PyMemoryView, PyString, PyTuple, PyType};
use ringloader_engine::codec::Codec;
use ringloader_engine::runtime::Backend;
use ringloader_engine::storage::{Mode, Options};
use ringloader_engine::{RaggedBatch, RaggedLayout, RaggedRecord, RaggedStore as Engine, Span};

use crate::array::{self, Memory};
use crate::dtype::{from_identity, given_dtype, to_identity};
use crate::errors::{ToPython, detached};
use crate::handle::{Handle, bytes_of, path_of};
use crate::index::{Selection, select};
use crate::iteration::RecordIterator;

/// Records of one dtype, each with its own shape.
///
/// Made by `RaggedStore.create` and `RaggedStore.open`.
#[pyclass(frozen, weakref, module = "ringloader")]
pub(crate) struct RaggedStore {
    handle: Handle<Engine>,
    dtype: Py<PyArrayDescr>,
}

crate::handle::common_methods!(RaggedStore, Engine);

#[pymethods]
impl RaggedStore {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        Err(PyTypeError::new_err("use RaggedStore.open(...) or RaggedStore.create(...)"))
    }

    /// Make a store and open it for reading and writing.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///     The store's directory: nothing, or an empty directory, must be there. Missing parents are made.
    /// dtype : dtype-like
    ///     The element type: anything with bytes of its own, structured and `ml_dtypes` types included.
    /// codec : {"zstd", "raw", "`zstd_dict`"}
    ///     ``raw`` keeps records as they are; ``zstd`` compresses each at level 3; ``zstd_dict`` compresses each at
    ///     level 19 against a dictionary, for small records that resemble each other.
    /// `dict_bytes` : bytes-like, optional
    ///     The dictionary from `train_dict`; required by ``zstd_dict``.
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -12 if there is something at the path, -2 if the file system refuses. Nothing is left behind.
    /// `ValueError`, `TypeError`
    ///     For a dtype, shape, codec or dictionary that no store can have.
    #[classmethod]
    #[pyo3(signature = (path, dtype, codec="zstd", dict_bytes=None))]
    fn create(
        cls: &Bound<'_, PyType>,
        #[pyo3(from_py_with = path_of)] path: PathBuf,
        dtype: &Bound<'_, PyAny>,
        codec: &str,
        dict_bytes: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let py = cls.py();
        let dtype = given_dtype(dtype)?;
        let identity = to_identity(&dtype)?;
        let codec = Codec::from_name(codec).to_python(py)?;
        let dictionary = dict_bytes.map(bytes_of).transpose()?;
        let handle = Handle::new(py, path, &Options::default(), |path, options| {
            Engine::create(path, identity, codec, dictionary.as_deref(), options)
        })?;
        Ok(Self { handle, dtype: dtype.unbind() })
    }

    /// Open a store.
    ///
    /// Parameters
    /// ----------
    /// path : path-like
    ///     The store's directory.
    /// mode : {"r+", "r"}
    ///     ``"r+"`` reads and writes and excludes all other handles; ``"r"`` reads and shares the store with other
    ///     readers, in this process and others.
    /// io : {"auto", "uring", "pread", "mmap"}
    ///     The way its bytes are read; ``"auto"`` is what `engine_info` says.
    ///
    /// Raises
    /// ------
    /// `FileNotFoundError`
    ///     If there is nothing at the path.
    /// `ZrecordError`
    ///     With code -13 if another handle excludes this one, -8 if the files are not a whole ragged store, -2 if
    ///     they cannot be read.
    #[classmethod]
    #[pyo3(signature = (path, mode="r+", io="auto"))]
    fn open(
        cls: &Bound<'_, PyType>,
        #[pyo3(from_py_with = path_of)] path: PathBuf,
        mode: &str,
        io: &str,
    ) -> PyResult<Self> {
        let py = cls.py();
        let mode = Mode::from_name(mode).to_python(py)?;
        let io = Backend::from_name(io).to_python(py)?;
        let options = Options { mode, io, ..Options::default() };
        let handle = Handle::new(py, path, &options, Engine::open)?;
        let dtype = from_identity(py, handle.store().to_python(py)?.dtype())
            .map_err(|cause| crate::handle::bad_identity(py, &handle.path, cause))?;
        Ok(Self { handle, dtype: dtype.unbind() })
    }

    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        self.describe(py, "")
    }

    /// Append records and return the index of the first.
    ///
    /// Parameters
    /// ----------
    /// records : iterable of array-like, bytes, bytearray or memoryview
    ///     At least one record, each of exactly the store's dtype and of any shape; a rank of 0 is kept. Bytes and other
    ///     buffers of bytes need a store of uint8.
    ///
    /// Returns
    /// -------
    /// int
    ///     The index of the first record. When this returns, gathers see the batch and the death of the process loses
    ///     none of it; `sync` makes it outlive a power loss.
    ///
    /// Raises
    /// ------
    /// `ValueError`
    ///     For another dtype, a record without elements, no records, or a store that is closed or open for reading.
    /// `ZrecordError`
    ///     With code -4 for a record over 2 GiB, -5 if the store is full, -2 if the file system refuses. Nothing is
    ///     appended then.
    fn append(&self, py: Python<'_>, records: &Bound<'_, PyAny>) -> PyResult<u64> {
        let store = self.handle.store().to_python(py)?;
        if is_bytes(records) || records.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err(format!(
                "append to {}: this is one record and not an iterable of them: put it in a list",
                self.handle.path.display()
            )));
        }
        let mut held = Vec::with_capacity(records.len().unwrap_or(0));
        for record in records.try_iter()? {
            held.push(Held::new(self, held.len(), &record?)?);
        }
        let shapes: Vec<Vec<u64>> = held.iter().map(Held::shape).collect();
        let batch: Vec<RaggedRecord<'_>> = held
            .iter()
            .zip(&shapes)
            .map(|(held, shape)| Ok(RaggedRecord { shape, payload: held.payload()? }))
            .collect::<PyResult<_>>()?;
        detached(py, || store.append(&batch))
    }

    /// One record as an array of its own shape, or a list of records.
    ///
    /// The arrays of a list share one buffer, which lives as long as any of them.
    ///
    /// Parameters
    /// ----------
    /// index : int, slice, or sequence or array of int or of bool
    ///     Negative numbers count from the end. An int gives one record, everything else a set of records in the order
    ///     in which they are named, repeated ones included.
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -3 for an index out of range (an `IndexError` too), -7 or -8 for a damaged record, naming it, -2 if
    ///     a read fails.
    /// IndexError
    ///     For an index of another kind, or a mask that is not as long as the store.
    fn __getitem__<'py>(
        &self,
        py: Python<'py>,
        index: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self.select(py, index)? {
            Selection::Many(indices) => Ok(self.list(py, &indices)?.into_any()),
            Selection::One(index) => self.list(py, &[index])?.get_item(0),
        }
    }

    /// Gather a batch as a list of arrays, optionally into memory of the caller.
    ///
    /// Parameters
    /// ----------
    /// idx : int, slice, or sequence or array of int or of bool
    ///     As for ``store[idx]``, but an int is a batch of one.
    /// out : ndarray of uint8, one axis, optional
    ///     Contiguous writable memory to gather into, of at least the records' bytes plus ``8 * (rank + 1)`` for the shape
    ///     of each. The arrays returned are views of it.
    ///
    /// Returns
    /// -------
    /// list of ndarray
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -3 for an index out of range (an `IndexError` too), -7 or -8 for a damaged record, naming it, -2 if
    ///     a read fails, -6 if `out` is too small.
    /// IndexError
    ///     For an index of another kind, or a mask that is not as long as the store.
    /// `ValueError`
    ///     If `out` is not such an array.
    #[pyo3(signature = (idx, out=None))]
    fn gather<'py>(
        &self,
        py: Python<'py>,
        idx: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let indices = self.select(py, idx)?.into_indices();
        let Some(out) = out else { return self.list(py, &indices) };
        let target = check_out(out)?;
        let store = self.handle.store().to_python(py)?;
        let (memory, owned) = (array::span_mut(target)?, Memory::of_array(target));
        let layout = detached(py, || store.gather_into(&indices, memory))?;
        self.arrays(py, &owned, &layout)
    }

    /// The batch of records `idx`: `gather`, under the name that data set protocols call.
    fn __getitems__<'py>(
        &self,
        py: Python<'py>,
        idx: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.gather(py, idx, None)
    }

    /// Gather a batch as one array of elements, for kernels that take ragged input.
    ///
    /// Parameters
    /// ----------
    /// idx : int, slice, or sequence or array of int or of bool
    ///     As for ``store[idx]``, but an int is a batch of one.
    ///
    /// Returns
    /// -------
    /// `RaggedBatch`
    ///     ``values``, the elements of all records, ``offsets`` (``(n + 1,)`` int64, in elements) and ``shapes``
    ///     (``(n, axes)`` int64, -1 for axes that a record does not have).
    ///
    /// Raises
    /// ------
    /// `ZrecordError`
    ///     With code -3 for an index out of range (an `IndexError` too), -7 or -8 for a damaged record, naming it, -2 if
    ///     a read fails.
    /// IndexError
    ///     For an index of another kind, or a mask that is not as long as the store.
    fn gather_packed<'py>(
        &self,
        py: Python<'py>,
        idx: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        static RAGGED_BATCH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
        let indices = self.select(py, idx)?.into_indices();
        let store = self.handle.store().to_python(py)?;
        let (batch, bytes) = detached(py, || {
            let mut batch = store.gather(&indices)?;
            let bytes = batch.pack();
            Ok((batch, bytes))
        })?;
        let RaggedBatch { buffer, layout } = batch;
        let dtype = self.dtype.bind(py);
        let item_bytes = dtype.itemsize();
        let values = if bytes == 0 {
            array::empty(dtype, &[0])?
        } else {
            Memory::of_buffer(py, buffer)?.array(dtype, 0, &[(bytes / item_bytes) as u64])?
        };
        let offsets =
            array::from_i64(py, &offsets(&layout, item_bytes), &[layout.len() as u64 + 1])?;
        let (shapes, axes) = shapes(&layout);
        let shapes = array::from_i64(py, &shapes, &[layout.len() as u64, axes])?;
        let class = RAGGED_BATCH.import(py, "ringloader._batch", "RaggedBatch")?;
        class.call1((values, offsets, shapes))
    }

    /// Yields every record in the order of the indices, gathered in blocks.
    ///
    /// Raises `RuntimeError` if records are deleted or compacted meanwhile.
    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<RecordIterator> {
        Ok(RecordIterator::new(slf.as_any(), slf.get()._reorders(slf.py())?, 0))
    }
}

impl RaggedStore {
    fn list<'py>(&self, py: Python<'py>, indices: &[u64]) -> PyResult<Bound<'py, PyList>> {
        let store = self.handle.store().to_python(py)?;
        let RaggedBatch { buffer, layout } = detached(py, || store.gather(indices))?;
        if layout.is_empty() {
            return Ok(PyList::empty(py));
        }
        self.arrays(py, &Memory::of_buffer(py, buffer)?, &layout)
    }

    fn arrays<'py>(
        &self,
        py: Python<'py>,
        memory: &Memory<'py>,
        layout: &RaggedLayout,
    ) -> PyResult<Bound<'py, PyList>> {
        let dtype = self.dtype.bind(py);
        let record = |i| memory.array(dtype, layout.payload(i).start, layout.shape(i));
        let records = (0..layout.len()).map(record).collect::<PyResult<Vec<_>>>()?;
        PyList::new(py, records)
    }
}

/// Where each record begins in the packed values, in elements, and where the last ends.
fn offsets(layout: &RaggedLayout, item_bytes: usize) -> Vec<i64> {
    let end = |i| (layout.payload(i).end / item_bytes) as i64;
    std::iter::once(0).chain((0..layout.len()).map(end)).collect()
}

/// The shapes as rows of one table, with -1 for the axes that a record does not have, and the
/// number of columns.
fn shapes(layout: &RaggedLayout) -> (Vec<i64>, u64) {
    let records = 0..layout.len();
    let axes = records.clone().map(|i| layout.shape(i).len()).max().unwrap_or(0);
    let mut table = Vec::with_capacity(layout.len() * axes);
    for i in records {
        let shape = layout.shape(i);
        table.extend(shape.iter().map(|dim| *dim as i64));
        table.extend(std::iter::repeat_n(-1, axes - shape.len()));
    }
    (table, axes as u64)
}

fn check_out<'a, 'py>(out: &'a Bound<'py, PyAny>) -> PyResult<&'a Bound<'py, PyUntypedArray>> {
    let array = out.cast::<PyUntypedArray>().ok();
    let fits = |array: &&Bound<'py, PyUntypedArray>| {
        array.ndim() == 1
            && array.dtype().kind() == b'u'
            && array.dtype().itemsize() == 1
            && array::is_writable_contiguous(array)
    };
    array.filter(fits).ok_or_else(|| {
        PyValueError::new_err("out must be a contiguous writable array of uint8 with one axis")
    })
}

/// A record to append, kept alive while its bytes are read.
enum Held<'py> {
    Bytes(Bound<'py, PyBytes>),
    Array(Bound<'py, PyUntypedArray>),
}

impl<'py> Held<'py> {
    fn new(store: &RaggedStore, number: usize, record: &Bound<'py, PyAny>) -> PyResult<Self> {
        let py = record.py();
        let path = store.handle.path.display();
        let dtype = store.dtype.bind(py);
        let held = if let Ok(bytes) = record.cast::<PyBytes>() {
            if dtype.kind() != b'u' || dtype.itemsize() != 1 {
                return Err(PyValueError::new_err(format!(
                    "append to {path}: record {number} is bytes, which are uint8, and the store's \
                     dtype is {dtype}"
                )));
            }
            Self::Bytes(bytes.clone())
        } else {
            let array = array_of(record)?;
            let found = array.dtype();
            if !found.is(dtype) && !found.eq(dtype)? {
                return Err(PyValueError::new_err(format!(
                    "append to {path}: record {number} has dtype {found}, and the store's is {dtype}"
                )));
            }
            Self::Array(array::contiguous(py, &array)?)
        };
        if held.payload()?.is_empty() {
            return Err(PyValueError::new_err(format!(
                "append to {path}: record {number} is empty, and a record must have at least one byte"
            )));
        }
        Ok(held)
    }

    fn shape(&self) -> Vec<u64> {
        match self {
            Self::Bytes(bytes) => vec![bytes.as_bytes().len() as u64],
            Self::Array(array) => array.shape().iter().map(|dim| *dim as u64).collect(),
        }
    }

    fn payload(&self) -> PyResult<Span<'_>> {
        match self {
            Self::Bytes(bytes) => Ok(Span::from(bytes.as_bytes())),
            Self::Array(array) => array::span(array),
        }
    }
}

fn is_bytes(object: &Bound<'_, PyAny>) -> bool {
    object.is_instance_of::<PyBytes>()
        || object.is_instance_of::<PyByteArray>()
        || object.is_instance_of::<PyMemoryView>()
}

/// A record as an array. Bytes are bytes, which numpy alone would take for a scalar.
fn array_of<'py>(record: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyUntypedArray>> {
    static FROMBUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = record.py();
    if record.is_instance_of::<PyByteArray>() && record.len()? > 0 {
        let from_buffer = FROMBUFFER.import(py, "numpy", "frombuffer")?;
        return Ok(from_buffer.call1((record, "u1"))?.cast_into()?);
    }
    array::as_array(py, record)
}
