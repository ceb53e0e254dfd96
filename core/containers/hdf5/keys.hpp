#pragma once

#include <string_view>

namespace reshard::hdf5 {

// Root attributes of our containers in addition to own_attributes.
inline constexpr std::string_view names_key = "names";  ///< logical_names or stored_names
inline constexpr std::string_view logical_names = "logical";
inline constexpr std::string_view stored_names = "stored";
inline constexpr std::string_view map_key = "map";    ///< of the family; "" for none
inline constexpr std::string_view part_key = "part";  ///< from 1
inline constexpr std::string_view software_version_key = "softwareVersion";  // openPMD's word
inline constexpr std::string_view parts_key = "parts";
inline constexpr std::string_view vocab_key =
    "vocab";  ///< rows without padding; only with logical names
inline constexpr std::string_view prediction_layers_key =
    "prediction_layers";  ///< only with logical names
inline constexpr std::string_view slots_key =
    "slots";  ///< of optimizer state, separated by spaces; absent if there is none

/// Objects that describe the model, with the names of Hugging Face and Megatron.
inline constexpr std::string_view args_name = "args.json";
/// The state of the run without its optimizer state, as common.pt of torch_dist.
inline constexpr std::string_view common_name = "common.pt";
constexpr bool is_description(std::string_view object) {
  return object == "config.json" || object == args_name;
}

inline constexpr std::string_view single_file_name = "model.h5";
inline constexpr std::string_view index_name = "model.h5.index.json";

}  // namespace reshard::hdf5
