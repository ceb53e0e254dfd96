#pragma once

#include <string>

namespace reshard {

/// A library that is opened while the program runs, and stays open until the process ends:
/// libraries with threads cannot be closed.
class SharedLibrary {
 public:
  /// Opens a path, or a name that the loader resolves. Error: resources, "NAME cannot be opened:
  /// …", with the loader's reason; `advice` ends the sentence.
  SharedLibrary(std::string name, std::string const& advice);

  /// The function of this name. Error: resources if the library has none.
  template <class Function>
  Function* function(char const* name) const {
    return reinterpret_cast<Function*>(address_of(name));
  }

 private:
  void* address_of(char const* name) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace reshard
