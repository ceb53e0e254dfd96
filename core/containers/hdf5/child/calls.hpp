#pragma once

#include <string>
#include <string_view>
#include <utility>

#include <hdf5.h>

#include "core/base/error.hpp"

namespace reshard::hdf5 {

/// An id of libhdf5, closed at the end of its scope.
class Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Handle(hid_t id, Close how) : id_(id), close_(how) {}
  Handle(Handle&& other) noexcept
      : id_(std::exchange(other.id_, H5I_INVALID_HID)), close_(other.close_) {}
  Handle& operator=(Handle&&) = delete;
  Handle(Handle const&) = delete;
  Handle& operator=(Handle const&) = delete;
  ~Handle() { close(); }

  hid_t id() const { return id_; }
  /// Closes now. False if libhdf5 reports a failure, as for a file whose last bytes cannot be
  /// written.
  bool close() { return id_ < 0 || close_(std::exchange(id_, H5I_INVALID_HID)) >= 0; }
  /// Releases the id without closing it.
  void forget() { id_ = H5I_INVALID_HID; }

 private:
  hid_t id_;
  Close close_;
};

/// While an object lives, libhdf5 does not print its errors.
class Quiet {
 public:
  Quiet();
  ~Quiet();
  Quiet(Quiet const&) = delete;
  Quiet& operator=(Quiet const&) = delete;

 private:
  H5E_auto2_t print_ = nullptr;
  void* print_data_ = nullptr;
};

/// Checks the results of calls of libhdf5: a failure is an Error of this kind, "place, object:
/// libhdf5 cannot <doing>: <its reason>. …". Borrows the texts.
struct Calls {
  ErrorKind kind;
  std::string_view place;
  std::string_view object = {};  ///< the dataset, group or attribute at work

  Handle take(hid_t id, Handle::Close how, std::string_view doing) const {
    if (id < 0) failed(doing);
    return {id, how};
  }
  /// Returns `result`; throws if it is negative.
  template <class Result>
  Result done(Result result, std::string_view doing) const {
    if (result < 0) failed(doing);
    return result;
  }
  [[noreturn]] void failed(std::string_view doing) const;
  Calls at(std::string_view name) const { return {kind, place, name}; }
};

/// Access properties of every file that is opened here: the metadata versions of 1.8 to 1.10, no
/// file locks.
Handle file_access(Calls const& calls);

}  // namespace reshard::hdf5
