#include "core/containers/hdf5/child/calls.hpp"

#include "core/containers/hdf5/names.hpp"

namespace reshard::hdf5 {
namespace {

/// The text of the deepest function that failed; the others only repeat that it did.
std::string reason() {
  std::string text;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, H5E_error2_t const* error, void* into) -> herr_t {
        if (error->desc != nullptr) *static_cast<std::string*>(into) = error->desc;
        return 1;  // enough
      },
      &text);
  return text.empty() ? "no reason given" : shown(text);
}

std::string_view next_step(ErrorKind kind) {
  if (kind == ErrorKind::source)
    return "The file is damaged, or was not completely written: compare it with the original.";
  if (kind == ErrorKind::io) return "Check the file system, then run again.";
  return "This is a bug of reshard or of libhdf5: please report it with the job file.";
}

}  // namespace

Quiet::Quiet() {
  H5Eget_auto2(H5E_DEFAULT, &print_, &print_data_);
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
}

Quiet::~Quiet() { H5Eset_auto2(H5E_DEFAULT, print_, print_data_); }

void Calls::failed(std::string_view doing) const {
  std::string const which = object.empty() ? std::string() : fmt::format(", '{}'", shown(object));
  fail(kind, "{}{}: libhdf5 cannot {}: {}. {}", place, which, doing, reason(), next_step(kind));
}

Handle file_access(Calls const& calls) {
  Handle access = calls.take(H5Pcreate(H5P_FILE_ACCESS), H5Pclose, "create file access properties");
  calls.done(H5Pset_fapl_sec2(access.id()), "choose its file driver");
  calls.done(H5Pset_libver_bounds(access.id(), H5F_LIBVER_V18, H5F_LIBVER_V110),
             "choose metadata versions");
  calls.done(H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG), "choose how files close");
  // Some file systems have no locks and refuse to open. The program locks the folder itself, and a
  // source is read only.
  calls.done(H5Pset_file_locking(access.id(), false, true), "disable file locks");
  return access;
}

}  // namespace reshard::hdf5
