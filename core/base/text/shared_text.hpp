#pragma once

#include <fmt/format.h>

#include <compare>
#include <concepts>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>

namespace reshard {

class SharedText;

/// The types that a SharedText can be compared with.
template <class T>
concept OtherText = std::convertible_to<T const&, std::string_view> &&
    !std::same_as<std::remove_cvref_t<T>, SharedText>;

/// An immutable text with many holders: the process stores each distinct text once, for as long as
/// it has a holder. A copy is a pointer and an increment. Names of stored tensors are such texts:
/// the files of 8,192 ranks have the same few hundred.
class SharedText {
 public:
  SharedText() = default;
  SharedText(std::string_view text) : entry_(entry_of(text)) {}
  SharedText(std::string const& text) : SharedText(std::string_view(text)) {}
  SharedText(char const* text) : SharedText(std::string_view(text)) {}
  SharedText(SharedText const& other) noexcept;
  SharedText(SharedText&& other) noexcept : entry_(other.entry_) { other.entry_ = nullptr; }
  SharedText& operator=(SharedText other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~SharedText() {
    if (entry_ != nullptr) release();
  }

  std::string const& text() const;
  operator std::string const&() const { return text(); }
  operator std::string_view() const { return text(); }

  bool empty() const { return entry_ == nullptr; }
  std::size_t size() const { return text().size(); }
  bool starts_with(std::string_view start) const { return text().starts_with(start); }
  bool ends_with(std::string_view end) const { return text().ends_with(end); }
  std::size_t find(std::string_view part) const { return text().find(part); }
  std::size_t rfind(std::string_view part) const { return text().rfind(part); }
  std::string substr(std::size_t begin, std::size_t count = std::string::npos) const {
    return text().substr(begin, count);
  }

  /// Equal for equal texts while they have a holder; differs between runs.
  std::size_t hash() const { return std::hash<void const*>()(entry_); }

  friend bool operator==(SharedText const& a, SharedText const& b) { return a.entry_ == b.entry_; }
  template <OtherText T>
  friend bool operator==(SharedText const& a, T const& b) {
    return a.text() == std::string_view(b);
  }
  friend std::strong_ordering operator<=>(SharedText const& a, SharedText const& b) {
    return a.entry_ == b.entry_ ? std::strong_ordering::equal : a.text() <=> b.text();
  }
  template <OtherText T>
  friend std::strong_ordering operator<=>(SharedText const& a, T const& b) {
    return std::string_view(a.text()) <=> std::string_view(b);
  }
  template <OtherText T>
  friend std::string operator+(SharedText const& a, T const& b) {
    return a.text() + std::string(std::string_view(b));
  }
  template <OtherText T>
  friend std::string operator+(T const& a, SharedText const& b) {
    return std::string(std::string_view(a)) + b.text();
  }

 private:
  struct Entry;
  class Pool;
  static Entry* entry_of(std::string_view text);
  void release() noexcept;

  Entry* entry_ = nullptr;  ///< null for ""
};

}  // namespace reshard

template <>
struct std::hash<reshard::SharedText> {
  std::size_t operator()(reshard::SharedText const& text) const noexcept { return text.hash(); }
};

template <>
struct fmt::formatter<reshard::SharedText> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(reshard::SharedText const& text, Context& context) const {
    return fmt::formatter<std::string_view>::format(std::string_view(text), context);
  }
};
