//! numpy arrays over pool memory, and the memory of arrays that Python passes in.
//!
//! This is one of the rooms in which `unsafe` is allowed: numpy's C API is raw pointers. Two
//! rules keep it sound. Memory that Python can see is only ever a span here, never a Rust
//! reference. And whoever holds a span holds the array that owns the memory.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::ptr::{self, NonNull};

use numpy::npyffi::{NPY_ARRAY_WRITEABLE, PY_ARRAY_API, npy_intp};
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::PyTypeInfo;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use ringloader_engine::identity::DIMENSIONS_MAX;
use ringloader_engine::pool::Buffer;
use ringloader_engine::{Span, SpanMut};

/// The owner of a batch's memory: the base of every array over it.
#[pyclass(frozen, module = "ringloader._ringloader")]
pub(crate) struct BatchMemory {
    /// Only kept: when the last array over it is gone, the pool has it back.
    _buffer: Buffer,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: `start` points into `_buffer`, which is `Send` and `Sync`, and is only used to make
// arrays, while attached to the interpreter.
unsafe impl Send for BatchMemory {}
// SAFETY: as above.
unsafe impl Sync for BatchMemory {}

/// Memory that arrays can be made over, with the object that owns it.
pub(crate) struct Memory<'py> {
    owner: Bound<'py, PyAny>,
    start: NonNull<u8>,
    len: usize,
}

impl<'py> Memory<'py> {
    /// The memory of a batch.
    pub(crate) fn of_buffer(py: Python<'py>, mut buffer: Buffer) -> PyResult<Self> {
        let len = buffer.len();
        let start = NonNull::new(buffer.as_mut_ptr()).expect("buffers have an address");
        let owner = Bound::new(py, BatchMemory { _buffer: buffer, start, len })?;
        let memory = owner.get();
        Ok(Self { start: memory.start, len: memory.len, owner: owner.into_any() })
    }

    /// The memory of a contiguous array that the caller gave.
    pub(crate) fn of_array(array: &Bound<'py, PyUntypedArray>) -> Self {
        let (start, len) = raw_parts(array);
        Self { owner: array.clone().into_any(), start, len }
    }

    /// An array of `shape` over the bytes from `offset` on.
    pub(crate) fn array(
        &self,
        dtype: &Bound<'py, PyArrayDescr>,
        offset: usize,
        shape: &[u64],
    ) -> PyResult<Bound<'py, PyAny>> {
        let mut dims = [0 as npy_intp; DIMENSIONS_MAX + 1];
        let dims = dims.get_mut(..shape.len()).ok_or_else(|| {
            PyValueError::new_err(format!("numpy has no arrays of {} axes", shape.len()))
        })?;
        let mut bytes = dtype.itemsize();
        for (dim, length) in dims.iter_mut().zip(shape) {
            *dim = *length as npy_intp;
            bytes = bytes.saturating_mul(*length as usize);
        }
        assert!(offset <= self.len && bytes <= self.len - offset, "an array outside its memory");
        let py = self.owner.py();
        // SAFETY: the array lies inside the memory, which `owner` keeps alive as its base, and
        // dtype and owner are each given away as one new reference, as numpy asks.
        unsafe {
            let array = PY_ARRAY_API.PyArray_NewFromDescr(
                py,
                PyUntypedArray::type_object_raw(py),
                dtype.clone().into_dtype_ptr(),
                dims.len() as c_int,
                dims.as_mut_ptr(),
                ptr::null_mut(),
                self.start.as_ptr().add(offset).cast::<c_void>(),
                NPY_ARRAY_WRITEABLE,
                ptr::null_mut(),
            );
            let array = Bound::from_owned_ptr_or_err(py, array)?;
            let base = self.owner.clone().into_ptr();
            if PY_ARRAY_API.PyArray_SetBaseObject(py, array.as_ptr().cast(), base) < 0 {
                return Err(PyErr::fetch(py));
            }
            Ok(array)
        }
    }
}

/// Where the elements of a contiguous array are, and how many bytes they have.
fn raw_parts(array: &Bound<'_, PyUntypedArray>) -> (NonNull<u8>, usize) {
    // SAFETY: the pointer is to a live array object, which `array` keeps alive.
    let data = unsafe { (*array.as_array_ptr()).fields.data };
    let len = array.len() * array.dtype().itemsize();
    // numpy gives even empty arrays an address; a span of no bytes needs none.
    (NonNull::new(data.cast()).unwrap_or(NonNull::dangling()), len)
}

/// The bytes of a contiguous array, to be read while `array` is held.
///
/// The array may have changed its layout since it was looked at, so it is looked at again.
pub(crate) fn span<'a>(array: &'a Bound<'_, PyUntypedArray>) -> PyResult<Span<'a>> {
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err("an array changed its layout while it was read"));
    }
    let (start, len) = raw_parts(array);
    // SAFETY: the elements of a contiguous array lie in one allocation, which lives as long as
    // the array that is borrowed for `'a`: numpy refuses to resize an array that others hold,
    // unless it is told not to look (`refcheck=False`), which is its caller's promise that
    // nobody does. No Rust reference to the elements is ever made.
    Ok(unsafe { Span::from_raw(start, len) })
}

/// The bytes of a contiguous writable array, to be filled while `array` is held.
///
/// The array may have changed its layout since it was looked at, so it is looked at again.
pub(crate) fn span_mut<'a>(array: &'a Bound<'_, PyUntypedArray>) -> PyResult<SpanMut<'a>> {
    if !is_writable_contiguous(array) {
        return Err(PyValueError::new_err("an array is not contiguous or not writable any more"));
    }
    let (start, len) = raw_parts(array);
    // SAFETY: as for `span`. Another span over the same array, in another thread's call, writes
    // through raw pointers as this one does: the caller's race, and torn bytes at worst.
    Ok(unsafe { SpanMut::from_raw(start, len) })
}

/// Whether the array's memory is contiguous and may be written.
pub(crate) fn is_writable_contiguous(array: &Bound<'_, PyUntypedArray>) -> bool {
    // SAFETY: the pointer is to a live array object, which `array` keeps alive.
    let flags = unsafe { (*array.as_array_ptr()).fields.flags };
    array.is_c_contiguous() && flags & NPY_ARRAY_WRITEABLE != 0
}

/// A copy of an array of signed integers of any width, byte order and stride.
pub(crate) fn copy_i64(array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<i64>> {
    let bytes = native_bytes(array, "<i8")?;
    let (numbers, _) = bytes.as_chunks();
    Ok(numbers.iter().map(|number| i64::from_le_bytes(*number)).collect())
}

/// A copy of an array of unsigned integers of any width, byte order and stride.
pub(crate) fn copy_u64(array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<u64>> {
    let bytes = native_bytes(array, "<u8")?;
    let (numbers, _) = bytes.as_chunks();
    Ok(numbers.iter().map(|number| u64::from_le_bytes(*number)).collect())
}

/// A copy of an array of bools: a byte each, not zero for true.
pub(crate) fn copy_bool(array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<u8>> {
    native_bytes(array, "|b1")
}

fn native_bytes(array: &Bound<'_, PyUntypedArray>, dtype: &str) -> PyResult<Vec<u8>> {
    let py = array.py();
    let wanted = PyArrayDescr::new(py, dtype)?;
    if array.is_c_contiguous() && array.dtype().is_equiv_to(&wanted) {
        return Ok(span(array)?.to_vec());
    }
    let converted = contiguous(py, &array.call_method1("astype", (wanted,))?)?;
    Ok(span(&converted)?.to_vec())
}

/// `numpy.asarray`.
pub(crate) fn as_array<'py>(
    py: Python<'py>,
    object: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    static ASARRAY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if let Ok(array) = object.cast::<PyUntypedArray>() {
        return Ok(array.clone());
    }
    Ok(ASARRAY.import(py, "numpy", "asarray")?.call1((object,))?.cast_into()?)
}

/// `numpy.ascontiguousarray`, but for arrays without axes, which stay so.
pub(crate) fn contiguous<'py>(
    py: Python<'py>,
    array: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyUntypedArray>> {
    static COPY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let array = array.cast::<PyUntypedArray>()?;
    if array.is_c_contiguous() {
        return Ok(array.clone());
    }
    Ok(COPY.import(py, "numpy", "ascontiguousarray")?.call1((array,))?.cast_into()?)
}

/// `numpy.empty`.
pub(crate) fn empty<'py>(
    dtype: &Bound<'py, PyArrayDescr>,
    shape: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    static EMPTY: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = dtype.py();
    let shape = pyo3::types::PyTuple::new(py, shape)?;
    EMPTY.import(py, "numpy", "empty")?.call1((shape, dtype))
}

/// A new array of `shape` with these numbers.
pub(crate) fn from_i64<'py>(
    py: Python<'py>,
    numbers: &[i64],
    shape: &[u64],
) -> PyResult<Bound<'py, PyAny>> {
    let array = empty(&PyArrayDescr::new(py, "<i8")?, shape)?;
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    span_mut(array.cast::<PyUntypedArray>()?)?.copy_from(Span::from(bytes.as_slice()));
    Ok(array)
}
