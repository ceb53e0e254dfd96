#pragma once

#include <string>
#include <utility>

#include "core/containers/file_frame.hpp"

namespace reshard::safetensors {

/// The frame of a safetensors file, which is its header only.
class HeaderFrame : public FileFrame {
 public:
  explicit HeaderFrame(std::string header) : header_(std::move(header)) {}
  std::string_view header() const override { return header_; }

 private:
  std::string header_;
};

}  // namespace reshard::safetensors
